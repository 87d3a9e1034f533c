// Nodes on a Redis Cluster of three primaries keep the delivery contract.

import t from "tap";
import { deliveryContract } from "../../contract/delivery.ts";
import { wireCluster } from "../../support/wires.ts";
import { deliveryDriver } from "./delivery-driver.ts";

const wires = await wireCluster(t);
const name = "redis cluster";
deliveryContract(t, deliveryDriver(name, wires, { isCluster: true }));
