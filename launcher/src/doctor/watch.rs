//! What changed on the machine while a job ran: compares looks at it.
