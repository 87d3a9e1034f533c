// Nodes on a Redis Cluster of three primaries fulfil the delivery contract.

import t from "tap";
import { deliveryContract } from "../../contract/delivery.ts";
import { startFaultyRedisCluster } from "../../support/faulty-network.ts";
import { deliveryDriver } from "./delivery-driver.ts";

const network = await startFaultyRedisCluster(t);
const name = "redis cluster";
deliveryContract(t, deliveryDriver(name, network, { isCluster: true }));
