// Runs the Store contract for the Redis driver on a Cluster of three primaries.

import t from "tap";
import { storeContract } from "../../contract/store.ts";
import { logContract } from "../../contract/store-logs.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { redisDriver } from "./contract-driver.ts";
import { redisLogDriver } from "./log-driver.ts";

const { url } = await startRedisCluster(t);
storeContract(t, redisDriver("Redis Cluster", url));
logContract(t, redisLogDriver("Redis Cluster", url));
