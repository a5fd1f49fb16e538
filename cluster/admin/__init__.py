"""The operators' API.

service     AdminService: one short method a call
reader      what readers are shown, from the mirror and the leader's reconciler
writer      how a wish is changed: read, edit, compare and set, with its audit event
edits       the edit of each call
validation  what no codec can tell
pages       page sizes and tokens
watch       snapshot, then changes
"""
