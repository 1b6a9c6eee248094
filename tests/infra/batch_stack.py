# SPDX-License-Identifier: MIT
"""The templates of infra/batch, and the parameters with which the tests create stacks of them."""
from templates import INFRA

BATCH, JOB = INFRA / "batch" / "batch.yaml", INFRA / "batch" / "job.yaml"
GIVEN = {"VpcId": "vpc-1", "SubnetId": "subnet-1", "Image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tutti:0.1.0",
         "DataRepository": "s3://data/imagenet", "RunsRepository": "s3://results"}
JOB_GIVEN = {"TemplateUrl": "https://bucket.s3.us-east-1.amazonaws.com/batch.yaml", "TemplateArn": "arn:aws:s3:::bucket/batch.yaml",
             "DataBucket": "data", "RunsBucket": "results"}
