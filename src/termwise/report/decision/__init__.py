"""From records to a decision: figures with their intervals, limits fixed beforehand, and the rules that weigh them.

    figures.py    a measured value, or that it is missing and why
    limits.py     what is allowed, by whom it was fixed and when
    evidence.py   what is known of one candidate beside what is used today
    rules.py      evidence and limits to one answer, its reason, conditions and next stage

No words for people and no drawing here. docs/verdict.md says the same in prose.
"""
