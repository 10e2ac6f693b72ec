"""A discrete-event cluster that writes Kineto traces with known truth."""

from moescope.simulate.config import Device, Model, Network, SimConfig
from moescope.simulate.faults import KINDS, Fault, parse_fault
from moescope.simulate.run import simulate

__all__ = ["KINDS", "Device", "Fault", "Model", "Network", "SimConfig", "parse_fault", "simulate"]
