"""Writes a clip of two seconds at 25 frames a second that becomes brighter from black to white."""
import sys

import av

FRAMES = 50
SIZE = 128

with av.open(sys.argv[1], "w") as clip:
    stream = clip.add_stream("mpeg4", rate=25)
    stream.width = stream.height = SIZE
    stream.pix_fmt = "yuv420p"
    for number in range(FRAMES):
        frame = av.VideoFrame(SIZE, SIZE, "rgb24")
        plane = frame.planes[0]
        plane.update(bytes([number * 255 // (FRAMES - 1)]) * plane.buffer_size)
        clip.mux(stream.encode(frame.reformat(format="yuv420p")))
    clip.mux(stream.encode())
