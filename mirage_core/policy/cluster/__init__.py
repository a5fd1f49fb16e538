"""Cluster-level policy: which models belong on which devices, and what helps a full device.

Pure, as the rest of ``policy``; it decides once in seconds, where a device's own policy decides in
milliseconds.  MIRAGE's paper stops at one device (§5), so these rules are this project's.

  view        what a decision is made from
  ranks       every order that is used, key by key
  fit         whether a model fits on a device
  placement   the devices of one model
  replicas    several devices as one replica: all or none
  relief      a device has nothing left to remap: move, replicate or ask for a node
  turns       what an agent is to make of a model on its device
  silence     when missing agents stop all moves
"""
