"""The student before its training: its first weights, from the teacher's embeddings.

Called by ``job.py`` of the distillation.
First weights change in ``initial.py``; how the teacher's space is turned, in ``rotation.py``.
"""
