#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests the input, output and training of a multi-node Batch job."""
import io
import tarfile

from batch_case import BatchCase, run


class Training(BatchCase):
    def archive(self, **files):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
        return out.getvalue()

    def test_input_and_output(self):
        bucket = self.bucket()
        self.s3.put_object(Bucket=bucket, Key="in/data.tar.gz", Body=self.archive(**{"set/words": "hello"}))
        self.s3.put_object(Bucket=bucket, Key="in/sub/plain", Body=b"plain")
        self.start(1, S3_INPUT=f"s3://{bucket}/in/")
        script = ('cat $SCRATCH_DIR/set/words $SCRATCH_DIR/sub/plain; echo; mkdir -p $RUNS_DIR/$JOB; '
                  'echo result >$RUNS_DIR/$JOB/log')
        main = self.start(0, "sh", "-c", script, S3_INPUT=f"s3://{bucket}/in/", S3_OUTPUT=f"s3://{bucket}/out",
                          MPI_GPUS="1", EXTRA_MPI_PARAMS=f"-x JOB={self.job}")
        self.assertIn("helloplain", self.ends(main, 0))
        body = self.s3.get_object(Bucket=bucket, Key=f"out/batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            self.assertEqual(tar.extractfile(f"{self.job}/log").read(), b"result\n")

    def test_input_that_a_child_cannot_read(self):
        bucket = self.bucket()
        child = self.start(1, S3_INPUT=f"s3://{bucket}/nothing.tar.gz")
        main = self.start(0, "true")
        self.assertIn(f"[node {self.cluster.address(1)}] expected its data", self.ends(main, 3))
        self.assertIn(f"s3:GetObject on arn:aws:s3:::{bucket}/nothing.tar.gz", self.ends(child, 3))

    def test_bad_input_and_output(self):
        bucket = self.bucket()
        for name, body in (("up.tar", self.archive(**{"../up": "x"})), ("cut.tar.gz", self.archive(a="x" * 9999)[:-20]),
                           ("no.tar", b"no archive")):
            self.s3.put_object(Bucket=bucket, Key=name, Body=body)
            log = self.ends(self.start(0, "true", nodes=1, S3_INPUT=f"s3://{bucket}/{name}"), 3)
            self.assertIn(f"[S3_INPUT s3://{bucket}/{name}] expected", log)
        self.assertFalse((self.folder / "up").exists())
        for name in ("both/a", "both/a/b"):  # `a` is a file, but a/b needs a folder with this name
            self.s3.put_object(Bucket=bucket, Key=name, Body=b"x")
        log = self.ends(self.start(0, "true", nodes=1, S3_INPUT=f"s3://{bucket}/both/"), 3)
        self.assertIn("[fetch] expected files that can be written", log)
        self.assertIn("expected s3://BUCKET/KEY", self.ends(self.start(0, "true", nodes=1, S3_INPUT="/data"), 3))
        # If the results do not arrive, the job fails even if the program succeeded. A failed program keeps its exit
        # code.
        (self.folder / "runs" / self.job).mkdir(parents=True)
        for program, code in (("true", 3), ("false", 1)):
            log = self.ends(self.start(0, program, nodes=1, S3_OUTPUT="s3://no-such-bucket-here/x"), code)
            self.assertIn("s3:PutObject on arn:aws:s3:::no-such-bucket-here/x/batch_output_", log)

    SMALL = {"TUTTI_DATASET": "synthetic", "TUTTI_NUM_EXAMPLES": "128", "TUTTI_IMAGE_SHAPE": "3,16,16", "TUTTI_DEPTH": "8",
             "TUTTI_THREADS": "1", "BATCH_SIZE": "16", "MPI_GPUS": "2", "EXTRA_MPI_PARAMS": "-map-by ppr:1:node"}

    def test_training(self):
        bucket = self.bucket()
        small = {**self.SMALL, "TUTTI_EPOCHS": "2"}
        self.start(1)
        main = self.start(0, "train_cifar10", S3_OUTPUT=f"s3://{bucket}", **small)
        log = self.ends(main, 0, 120)
        self.assertIn("strategy mpi, 2 ranks", log)
        self.assertIn("32 images per update", log)
        self.assertIn("done: 8 steps", log)
        # The files for TensorBoard are in the file system that the nodes share.
        run = self.folder / "runs" / self.job
        self.assertEqual(len(list(run.glob("events.out.tfevents.*"))), 1)
        body = self.s3.get_object(Bucket=bucket, Key=f"batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            self.assertIn(f"{self.job}/checkpoints/step-000000008/model.safetensors", tar.getnames())
        # Batch starts a failed job again with the same number, and the run continues.
        self.end_nodes()
        self.start(1)
        again = self.start(0, "train_cifar10", **{**small, "TUTTI_EPOCHS": "3"})
        self.assertIn("done: 12 steps", self.ends(again, 0, 120))
        self.assertEqual(len(list(run.glob("events.out.tfevents.*"))), 2)

    def test_option_that_does_not_exist(self):
        self.start(1)
        log = self.ends(self.start(0, "train_cifar10", **self.SMALL, TUTTI_EPOHCS="2"), 2)
        self.assertIn("did you mean TUTTI_EPOCHS", log)

    def test_stopped_by_batch(self):
        bucket = self.bucket()
        child = self.start(1)
        main = self.start(0, "train_cifar10", **self.SMALL, TUTTI_EPOCHS="100000", S3_OUTPUT=f"s3://{bucket}/o/")
        self.wait_for(main, "epoch 2/100000", 60)
        main.stop()
        child.stop()
        log = self.ends(main, 143, 30)
        self.ends(child, 143, 30)
        # mpirun got a signal, and was not killed after STOP_TIMEOUT.
        self.assertNotIn("[stop]", log)
        self.assertRegex(log, r"interrupted after step \d+, state saved")
        self.assertIn("the training ended with code 143", log)
        body = self.s3.get_object(Bucket=bucket, Key=f"o/batch_output_{self.job}.tar.gz")["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            saved = [n for n in tar.getnames() if n.endswith("/COMPLETE")]
        steps = [int(p.parent.name[5:]) for p in (self.folder / "runs" / self.job).glob("checkpoints/step-*/COMPLETE")]
        self.assertEqual(saved, [f"{self.job}/checkpoints/step-{max(steps):09}/COMPLETE"])

    def test_imagenet_by_environment(self):
        self.start(1)
        main = self.start(0, BATCH_SIZE="4", MPI_GPUS="2", EXTRA_MPI_PARAMS="-map-by ppr:1:node", TUTTI_SYNTHETIC="1",
                          TUTTI_NUM_EXAMPLES="64", TUTTI_MODEL="resnet18", TUTTI_IMAGE_SIZE="32", TUTTI_NUM_CLASSES="10",
                          TUTTI_EPOCHS="2", TUTTI_WARMUP_EPOCHS="1", TUTTI_THREADS="1", TUTTI_DISPLAY_EVERY="4")
        log = self.ends(main, 0, 120)
        self.assertRegex(log, r"(?m)^epoch 2/2 .* train loss ")
        self.assertTrue(list((self.folder / "runs" / self.job / "checkpoints").glob("step-*16/COMPLETE")))


if __name__ == "__main__":
    run()
