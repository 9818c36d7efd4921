"""Commands that read the files of logs and change nothing: they show content and find damage."""
