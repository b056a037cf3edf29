"""tttembed-rag for Haystack: what a pipeline retrieves and ranks goes to a store."""

from haystack_integrations.components.connectors.tttembed.recorder import TTTRecorder

__all__ = ["TTTRecorder"]
