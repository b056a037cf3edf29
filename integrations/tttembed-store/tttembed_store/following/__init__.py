"""Live offsets that follow a store. Private: may change without notice."""

from tttembed_store.following.follower import follow

__all__ = ["follow"]
