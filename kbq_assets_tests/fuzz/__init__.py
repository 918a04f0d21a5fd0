"""Random and mutated schemas, payloads, names, registry answers and documents: no exception leaves its unit.

bounds     runs a case within bounds of processor time and memory
mutate     damages texts and JSON values as people, proxies and attackers do
subjects   a subject for each kind of input: how to make a case, and what must hold

`kbq_assets_tests/wire/test_fuzz.py` compares the validator of Avro records with other readers.
"""
