"""Reports: records as rows (`summary`), as a file that can be kept and compared (`document`), as text and as HTML."""
