"""The paper's studies, its rivals and its tables: what a user of the package may ignore."""
