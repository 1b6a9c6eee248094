# SPDX-License-Identifier: MIT
"""Events of Auto Scaling as its notifications contain them, with messages of EC2, for test_lambda.py."""

# The events of Auto Scaling. Values that a test fills in are their names in capitals.
LAUNCH = ('{"Progress":50,"AccountId":"123456789012","Description":"Launching a new EC2 instance: INSTANCE",'
          '"RequestId":"f2a5c1b4-0000-4d2a-9d9a-2d6ba0f1f3c1","EndTime":"2018-11-18T13:02:11.911Z",'
          '"AutoScalingGroupARN":"arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:1:autoScalingGroupName/GROUP",'
          '"ActivityId":"f2a5c1b4-0000-4d2a-9d9a-2d6ba0f1f3c1","StartTime":"2018-11-18T13:01:38.709Z","Service":"AWS Auto Scaling",'
          '"Time":"2018-11-18T13:02:11.911Z","EC2InstanceId":"INSTANCE","StatusCode":"InProgress","StatusMessage":"",'
          '"Details":{"Subnet ID":"subnet-1a2b3c4d","Availability Zone":"us-east-1a"},"AutoScalingGroupName":"GROUP",'
          '"Cause":"At 2018-11-18T13:01:35Z an instance was started in response to a difference between desired and actual capacity, '
          'increasing the capacity from 0 to 4.","Event":"autoscaling:EC2_INSTANCE_LAUNCH"}')
LAUNCH_ERROR = ('{"Progress":100,"AccountId":"123456789012","Description":"Launching a new EC2 instance.  Status Reason: There is no '
                'capacity.","RequestId":"ACTIVITY","EndTime":"2018-11-18T13:02:11Z",'
                '"AutoScalingGroupARN":"arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:1:autoScalingGroupName/GROUP",'
                '"ActivityId":"ACTIVITY","StartTime":"2018-11-18T13:01:38.709Z","Service":"AWS Auto Scaling",'
                '"Time":"2018-11-18T13:02:11.911Z","EC2InstanceId":"","StatusCode":"Failed","StatusMessage":"There is no capacity.",'
                '"Details":{"Subnet ID":"subnet-1a2b3c4d","Availability Zone":"us-east-1a"},"AutoScalingGroupName":"GROUP",'
                '"Cause":"capacity from 0 to 4.","Event":"autoscaling:EC2_INSTANCE_LAUNCH_ERROR"}')
TERMINATE = LAUNCH.replace("EC2_INSTANCE_LAUNCH", "EC2_INSTANCE_TERMINATE").replace("Launching a new", "Terminating")
TERMINATE_ERROR = LAUNCH_ERROR.replace("EC2_INSTANCE_LAUNCH_ERROR", "EC2_INSTANCE_TERMINATE_ERROR")
TEST = ('{"AccountId":"123456789012","RequestId":"a1b2c3d4-1c3a-11e8-9d9a-2d6ba0f1f3c1",'
        '"AutoScalingGroupARN":"arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:1:autoScalingGroupName/GROUP",'
        '"AutoScalingGroupName":"GROUP","Service":"AWS Auto Scaling","Event":"autoscaling:TEST_NOTIFICATION",'
        '"Time":"2018-11-18T13:01:35.123Z"}')

# For each message of EC2 that Auto Scaling forwards: the part of it that a signal contains.
REFUSALS = {
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that the specified instance "
    "type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit. Launching EC2 "
    "instance failed.": "You have requested more vCPU capacity than your current vCPU lim",
    "You have requested more instances (1) than your current instance limit of 0 allows for the specified instance type. Launching EC2 "
    "instance failed.": "You have requested more instances (1) than your current instance",
    "Your requested instance type (g5.xlarge) is not supported in your requested Availability Zone (us-east-1e). Please retry your request "
    "by not specifying an Availability Zone or choosing us-east-1a. Launching EC2 instance failed.":
        "Your requested instance type (g5.xlarge) is not supported in you",
    "The requested Availability Zone is no longer supported. Launching EC2 instance failed.":
        "The requested Availability Zone is no longer supported. Launchin",
    "The requested configuration is currently not supported. Please check the documentation for supported configurations. Launching EC2 "
    "instance failed.": "The requested configuration is currently not supported. Please c",
    "The image id '[ami-0123456789abcdef0]' does not exist. Launching EC2 instance failed.":
        "The image id '[ami-0123456789abcdef0]' does not exist. Launching",
    "Volume of size 75GB is smaller than snapshot 'snap-1', expect size >= 100GB. Launching EC2 instance failed.":
        "Volume of size 75GB is smaller than snapshot 'snap-1', expect si",
    "The specified instance type is not eligible for Free Tier. Launching EC2 instance failed.":
        "The specified instance type is not eligible for Free Tier. Launc",
    "The key pair 'mine' does not exist. Launching EC2 instance failed.":
        "The key pair 'mine' does not exist. Launching EC2 instance faile",
    "In order to use this AWS Marketplace product you need to accept terms and subscribe. Launching EC2 instance failed.":
        "In order to use this AWS Marketplace product you need to accept ",
    "VcpuLimitExceeded": "VcpuLimitExceeded", "Unsupported": "Unsupported", "InvalidAMIID.NotFound": "InvalidAMIID.NotFound"}
REFUSALS = {message: words.strip() for message, words in REFUSALS.items()}
TRANSIENT = {
    "We currently do not have sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1a). Launching EC2 instance "
    "failed.": "We currently do not have sufficient g5.xlarge capacity in the Av",
    "Invalid IAM Instance Profile name. Launching EC2 instance failed.": "Invalid IAM Instance Profile name. Launching EC2 instance failed",
    "Request limit exceeded. Launching EC2 instance failed.": "Request limit exceeded. Launching EC2 instance failed.",
    "The security group 'sg-1' does not exist. Launching EC2 instance failed.": "The security group 'sg-1' does not exist. Launching EC2 instance",
    "Something new": "Something new"}
