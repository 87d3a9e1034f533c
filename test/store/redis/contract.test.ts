// Runs the Store contract for the Redis driver on one server, and compares the driver with the
// embedded driver.

import t from "tap";
import { differential } from "../../contract/differential.ts";
import { storeContract } from "../../contract/store.ts";
import { logContract } from "../../contract/store-logs.ts";
import { startRedis } from "../../support/redis.ts";
import { embeddedDriver } from "../embedded/folder.ts";
import { redisDriver } from "./contract-driver.ts";
import { redisLogDriver } from "./log-driver.ts";

const { url } = await startRedis(t);
const driver = redisDriver("Redis", url);
storeContract(t, driver);
logContract(t, redisLogDriver("Redis", url));
differential(t, embeddedDriver("embedded"), driver);
