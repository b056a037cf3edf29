"""What was published: versions, their aliases, and who changed what. Private: may change without notice."""
