"""convrec: conversations and a catalog in, a small LLM that recommends well out."""
