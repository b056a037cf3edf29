"""Live offsets that follow a store."""

from tttembed_store.following.follower import follow

__all__ = ["follow"]
