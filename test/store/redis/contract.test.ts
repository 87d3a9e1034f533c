// The Redis driver against the Store contract, on one server.

import t from "tap";
import { storeContract } from "../../contract/store.ts";
import { startRedis } from "../../support/redis.ts";
import { redisDriver } from "./contract-driver.ts";

const { url } = await startRedis(t);
storeContract(t, redisDriver("Redis", url));
