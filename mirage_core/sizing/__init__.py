"""Sizes and speeds of models and GPUs, before either is at hand.

documents     YAML and JSON files, whose errors name file, line and field
hardware      what a GPU's memory, arithmetic and host link can do, and how sure that is
fields        one Hugging Face config, read field by field
weights       weights of a layer: what moves, with what, and what each rank holds of it
caches        what a layer keeps of a request: bytes a token, a window, a state
blocks        attention, MLP, experts and mixers, from which all models are built
architectures model families by the name that their config carries
model         one model, sized: units, KV bytes, arithmetic
catalogue     models by name, from data files
roofline      time of a step from bytes and operations
"""
