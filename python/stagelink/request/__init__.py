"""What happens to one request: prompt chunks, plans, sampling, stops, text.

Pure: nothing in this package knows a ring, an engine or HTTP.
"""
