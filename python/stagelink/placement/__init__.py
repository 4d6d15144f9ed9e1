"""Which rank holds which layers, decided before boot. Pure: tables in, tables out."""
