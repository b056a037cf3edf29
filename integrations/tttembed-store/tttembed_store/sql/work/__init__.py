"""What workers share: queues of judges, paid answers, open batches, states. Private: may change without notice."""
