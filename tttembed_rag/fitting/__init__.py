"""The plain rule: rewards of a scope in, its certified offset out. Private: may change without notice."""

from tttembed_rag.fitting.recipe import ObjectiveName, Recipe, SolverName
from tttembed_rag.fitting.scopes import fit_scope, scope_weights
from tttembed_rag.fitting.solver import Solution

__all__ = ["ObjectiveName", "Recipe", "Solution", "SolverName", "fit_scope", "scope_weights"]
