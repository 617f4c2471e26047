"""HDF5's oldest format, in which earlier versions of the program wrote, and the damage that crashes HDF5 there. Needs
h5py; tests/support/old_hdf5.hpp is the same in C++."""

import struct


def copy_attributes(source, copy):
    for name, value in source.attrs.items():
        copy.attrs.create(name, value, dtype=source.attrs.get_id(name).dtype)


def convert(path):
    """Rewrites a file, its datasets contiguous, in that format."""
    import h5py

    sound = path.rename(path.with_name(path.name + ".new_format"))
    with h5py.File(sound) as source, h5py.File(path, "w", libver=("earliest", "v108")) as copy:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)

        def add(name, item):
            if isinstance(item, h5py.Dataset):
                copy_attributes(item, copy.create_dataset(name, data=item[()], dtype=item.dtype, dcpl=layout))
            else:
                copy_attributes(item, copy.create_group(name))

        copy_attributes(source, copy)
        source.visititems(add)
    sound.unlink()
    assert path.read_bytes()[8] == 0, "superblock of another version"


def share_fill_value(path, dataset):
    """Flips the bit that calls the dataset's fill value one that several datasets share."""
    import h5py

    with h5py.File(path) as file:
        at = h5py.h5o.get_info(file[dataset].id).addr
    content = bytearray(path.read_bytes())
    assert content[at] == 1, "header of another version"
    at += 16
    while True:
        kind, size = struct.unpack_from("<HH", content, at)
        if kind == 5:
            break
        at += 8 + size
    content[at + 4] ^= 2
    path.write_bytes(content)
