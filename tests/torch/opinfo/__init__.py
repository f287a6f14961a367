"""PyTorch's own generators of cases, run on flagos and on its twin, and compared bit for bit.

Reading order: sides.py (where operands lie), outcome.py (what one call did), variants.py (the ways in
which an operator is called), reasons.py (the differences that are right), suite.py (one case from
end to end).
"""
