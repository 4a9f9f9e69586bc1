"""Writing a GGUF model in other weight types, byte for byte as llama-quantize writes it.

mixture.py     which type each tensor gets for a target such as Q4_K_M
encoders/      what turns floats into blocks: one kernel of our own code generation a type
importance.py  importance matrices: both of llama.cpp's file formats, read and written
collect.py     importance collected: the inputs of matrices as further outputs of the graph
experts.py     the same for experts, whose rows the kernels keep among themselves
job.py         the whole run: slices of tensors through the encoders into the file
"""
