"""tttembed-rag for Haystack: text embedders whose query vectors carry learned offsets."""

from haystack_integrations.components.embedders.tttembed.learned import Learned
from haystack_integrations.components.embedders.tttembed.text_embedder import TTTTextEmbedder

__all__ = ["Learned", "TTTTextEmbedder"]
