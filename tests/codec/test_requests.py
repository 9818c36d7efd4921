"""A request names its response's class, as which the type checker takes what a call returns."""

from typing import ForwardRef, get_args

import pytest

from kwire.codec.apis import APIS, Api


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_request_names_the_response_of_its_api(api: Api):
    (base,) = vars(api.request)["__orig_bases__"]
    assert get_args(base) == (ForwardRef(api.response.__name__),)
