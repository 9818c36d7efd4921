"""Commands that read the files of logs and change nothing: their content, and their damage."""
