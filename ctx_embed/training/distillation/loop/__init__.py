"""The training of a student: objectives, optimizer, log and metrics.

Called by ``job.py`` of the distillation.
A new term of the loss goes into ``objectives.py``; the loop is ``trainer.py``.
"""
