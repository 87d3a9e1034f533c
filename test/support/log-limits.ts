// Log limits for the stores in tests.

export const LOG_LIMITS = {
  ...{ maxBytes: 16_777_216, maxRecords: 100_000, maxProducers: 64 },
  ...{ maxOpen: 100_000, maxActiveBytes: 268_435_456 },
};
