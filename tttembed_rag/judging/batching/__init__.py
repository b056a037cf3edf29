"""Judges asked by batches: requests in a file, answers in a day, at half price. Private: may change without notice."""
