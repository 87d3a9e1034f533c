// Runs the Store contract for the Redis driver on one server, and compares the driver with the
// embedded driver.

import t from "tap";
import { differential } from "../../contract/differential.ts";
import { storeContract } from "../../contract/store.ts";
import { startRedis } from "../../support/redis.ts";
import { embeddedDriver } from "../embedded/folder.ts";
import { redisDriver } from "./contract-driver.ts";

const { url } = await startRedis(t);
const driver = redisDriver("Redis", url);
storeContract(t, driver);
differential(t, embeddedDriver("embedded"), driver);
