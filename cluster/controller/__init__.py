"""The controller's process: it composes store, election, sessions, reconciler and the admin API.

mirror      the store's records as this process last saw them, on leader and standbys alike
term        one leader's term: reconciler, fenced writes, what leaves only after them
sessions    agents' streams
outbox      what waits for one agent, the latest of each key
changes     who is told of what changed, and from where a watch resumes
servers     gRPC servers with health and reflection
controller  the process
"""
