"""The page of a measurement: queries one by one, their lists before and after. Private: may change without notice."""
