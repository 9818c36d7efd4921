"""A small shop: an outbox of orders, a consumer that charges them, a stream of invoices."""
