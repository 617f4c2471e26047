"""Settings of ReFrame for nanorun_test.py: this machine, and a Slurm cluster whose names are to be filled in."""

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "hostnames": ["login"],  # regular expressions of the hosts where reframe is started
            "modules_system": "nomod",  # lmod, tmod4, ...
            "partitions": [{
                "name": "gpu",
                "scheduler": "slurm",  # squeue where there is no sacct
                "launcher": "srun",
                "access": ["--account=project", "--partition=gpu", "--gpus-per-node=8"],
                "environs": ["builtin"],
            }],
        },
        {
            "name": "here",
            "hostnames": [".*"],
            "partitions": [{
                "name": "cpu",
                "scheduler": "local",
                "launcher": "mpirun",
                "environs": ["builtin"],
                "max_jobs": 1,  # runs at the same time would slow each other
            }],
        },
    ],
}
