"""The experiments of the paper, one file each: what is measured, and the tables it makes."""
