"""What workers share: the queue of judges, answers that were paid, open batches, and what is kept between rounds.

Private: may change without notice.
"""
