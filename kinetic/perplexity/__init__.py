"""How well a model predicts a text, measured and written as llama-perplexity does.

chunks      tokens cut into windows; the logits of each window's second half
scores      logits -> negative log-likelihoods, KL divergences, their sums
base_file   log-probabilities on disk, in llama-perplexity's format
measure     the three together, one window after the other
"""
