"""Out-of-tree model classes of the demo; the package that SGLANG_EXTERNAL_MODEL_PACKAGE names.

SGLang imports every module in here and collects their ``EntryClass``, so nothing but model
classes may lie in this folder.
"""
