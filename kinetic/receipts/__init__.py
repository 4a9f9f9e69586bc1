"""Receipts: what an answer was made of, so that anyone can make it again and compare.

record = make_receipt(model, request, seed=..., answer=Answer(...), given=...)
write_receipt(path, sign(record, key))
receipt = read_receipt(path)          # every field checked, seals and signature too
report = verify(receipt)              # reruns the plainest way
"""
