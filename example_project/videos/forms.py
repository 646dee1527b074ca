from __future__ import annotations

from django import forms

from example_project.videos.models import Video


class UploadForm(forms.ModelForm):
    class Meta:
        model = Video
        fields = ["title", "file"]
