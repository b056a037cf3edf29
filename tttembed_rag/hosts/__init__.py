"""Further hosts, each a module that is imported by itself and needs its own extra; docs/how-to/hosts.md lists them.

`reading` and `spans` turn the spans of any instrumented framework into observations and rewards, `spanfiles` and
`phoenix` read spans from yesterday, and the others wrap the embedding models of a framework or a store.
"""
