"""Models on this computer and on the hub: found, named, downloaded, removed.

Only `hub` and `transfer` open connections, and only `kinetic pull`, `kinetic can-run REPO` and
`kinetic` alone, after a model was picked, import them.
"""
