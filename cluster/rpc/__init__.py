"""What both gRPC services of the controller share: errors as statuses, the guard at the edge."""
