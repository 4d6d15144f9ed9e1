"""What a verification runs, compares and concludes: rounds, figures, limits, receipt and page."""
